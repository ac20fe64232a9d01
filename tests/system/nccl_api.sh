#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# also with: GANTRY_SECRET=alpha
# NCCL's API on the host device, by a program that finds libnccl.so.2 at run time and knows nothing else: communicators of
# processes, of threads and of one thread, every function, wrong arguments and their codes. NCCL's variables stand in for
# Gantry's, those without effect are named once, and by one rank.
. "$(dirname "$0")/lib.sh"
api=$BUILD_DIR/nccl/api
[ -x "$api" ] || skip "no $api"
clean_environment GANTRY_SECRET
no_leaks
export LD_LIBRARY_PATH=$BUILD_DIR/lib GANTRY_NCCL_DEVICE=host GANTRY_IFNAME=lo
tested=("$api")

cases="init config network sendrecv all_reduce rooted parts ops init_all split split_group shrink ends forked revoke grow nonblocking wrong params window"
for how in processes threads; do
	for n in 1 2 3; do
		expect 0 $how $n $cases
	done
done
for c in init sendrecv; do expect 0 threads 16 $c; done

for n in 1 3; do expect 0 threads $n abort; done
expect 0 processes 2 abort
GANTRY_TIMEOUT=5s expect 0 processes 4 death

[ ! -e "$BUILD_DIR/fixtures/cuda/libcuda.so.1" ] || [ -n "${GANTRY_SANITIZED:-}" ] ||
	LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$BUILD_DIR/fixtures/cuda GANTRY_NCCL_DEVICE=auto expect 0 threads 1 cuda

if [ -e "$BUILD_DIR/tests/test_encrypt" ] && has_openssl && ldconfig -p | grep -q libssl.so; then
	GANTRY_LOG=info GANTRY_TRANSPORT=net expect 0 processes 2 encrypt sendrecv encrypt_late
	has err 'lanes, encrypted'
fi

# NCCL's variables.
GANTRY_NCCL_VERSION=21903 expect 0 threads 1 params
NCCL_DEBUG=INFO expect 0 processes 2 sendrecv params
has err "gantry INFO comm"
[ -n "${GANTRY_SECRET:-}" ] || { NCCL_DEBUG=INFO GANTRY_LOG=warn expect 0 processes 2 sendrecv; lacks err "gantry INFO"; }
# stands NCCL GANTRY: with the one, which is NAME=VALUE, the other is in force.
stands() { env "$1" timeout 60 "$api" threads 1 show >"$tmp/out" 2>"$tmp/err" && grep -qx "$2" "$tmp/out" || die "$1 is not $2"; }
stands NCCL_DEBUG=TRACE GANTRY_LOG=trace
stands NCCL_DEBUG=version GANTRY_LOG=warn
stands NCCL_DEBUG_FILE=/dev/null GANTRY_LOG_FILE=/dev/null
stands NCCL_DEBUG_SUBSYS=NET,proxy GANTRY_LOG_SUBSYS=net,data,loader,plugin,proxy
stands NCCL_DEBUG_SUBSYS=ENV,Nonsense GANTRY_LOG_SUBSYS=base
stands NCCL_DEBUG_SUBSYS=ALL GANTRY_LOG_SUBSYS=base,net,data,loader,plugin,device,proxy,comm
stands NCCL_DEBUG_SUBSYS=^NET GANTRY_LOG_SUBSYS=base,loader,plugin,tool,device,proxy,comm,rx
stands NCCL_DEBUG_SUBSYS=^PROXY,ALLOC,ALLOC_HOST,INIT GANTRY_LOG_SUBSYS=base,net,data,loader,plugin,tool,comm,rx
stands NCCL_DEBUG_SUBSYS=Nonsense GANTRY_LOG_SUBSYS=all
stands NCCL_NET=socket GANTRY_NET=socket
stands NCCL_P2P_DISABLE=1 GANTRY_P2P=off
stands NCCL_P2P_DISABLE=0 GANTRY_P2P=auto
stands NCCL_P2P_DIRECT_DISABLE=1 GANTRY_PTR=off
stands NCCL_P2P_DIRECT_DISABLE=0 GANTRY_PTR=on
stands NCCL_SHM_DISABLE=1 GANTRY_TRANSPORT=p2p,net
stands NCCL_PROTO=LL128 GANTRY_PROTO=ll128
stands NCCL_PROTO=LL,Simple GANTRY_PROTO=auto
stands NCCL_MAX_NCHANNELS=3 GANTRY_CHANNELS=3
stands NCCL_MIN_NCHANNELS=80 GANTRY_CHANNELS=64
stands NCCL_NET_PLUGIN=other GANTRY_NET_PLUGIN=other
stands NCCL_NET_PLUGIN=gantry GANTRY_NET_PLUGIN=
stands NCCL_HOSTID=x7 GANTRY_HOST_ID=x7
stands NCCL_ALGO=Ring GANTRY_ALGO=ring
stands NCCL_ALGO=allreduce:CollNetChain GANTRY_ALGO=collnet
stands NCCL_COLLNET_ENABLE=1 GANTRY_COLLNET=on
stands NCCL_NET_GDR_LEVEL=LOC GANTRY_NET_GDR=off
stands NCCL_IGNORE_CPU_AFFINITY=1 GANTRY_PROXY_PIN=off
GANTRY_CHANNELS=2 stands NCCL_MAX_NCHANNELS=3 GANTRY_CHANNELS=2
echo "ok: variables of NCCL stand for Gantry's"
NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 expect 0 processes 2 sendrecv
# A network by its name: Gantry's own has two, a plugin the one of its table.
NCCL_NET=SOCKET GANTRY_TRANSPORT=net expect 0 processes 2 sendrecv
NCCL_NET=Simple NCCL_NET_PLUGIN=$BUILD_DIR/fixtures/libnccl-net-device.so NCCL_DEBUG=INFO GANTRY_TRANSPORT=net expect 0 processes 2 sendrecv
has err "network simple: device 0"
NCCL_NET=Socket NCCL_NET_PLUGIN=$BUILD_DIR/fixtures/libnccl-net-device.so NCCL_DEBUG=INFO GANTRY_TRANSPORT=net expect 0 processes 2 sendrecv
lacks err "network simple"
refused() { timeout 60 "$api" processes 2 sendrecv >"$tmp/out" 2>"$tmp/err" && die "a network that there is not"; }
NCCL_NET=IB refused
has err 'there is no network named "IB" (GANTRY_NET or NCCL_NET); there are: gantry, also named Socket, and no plugin (GANTRY_NET_PLUGIN)'
NCCL_NET=IB NCCL_NET_PLUGIN=$BUILD_DIR/fixtures/libnccl-net-device.so GANTRY_TRANSPORT=net refused
has err 'there is no network named "IB" (GANTRY_NET or NCCL_NET); there are: gantry, also named Socket, simple'
# By the communicator's configuration: two networks beside each other in a process. The environment goes before it.
NCCL_NET_PLUGIN=$BUILD_DIR/fixtures/libnccl-net-device.so NCCL_DEBUG=INFO GANTRY_TRANSPORT=net expect 0 processes 2 network
has err "network simple: device 0"
has err "network gantry: device 0"
NCCL_NET=Socket NCCL_NET_PLUGIN=$BUILD_DIR/fixtures/libnccl-net-device.so NCCL_DEBUG=INFO GANTRY_TRANSPORT=net expect 0 processes 2 network
lacks err "network simple"
expect 0 processes 3 config_idle
[ "$(grep -c 'members of ncclConfig_t' "$tmp/err")" = 1 ] || die "not one line about members without effect"
like err "gantry WARN comm: these members of ncclConfig_t are set but have no effect under Gantry: CTAPolicy=2, numRmaSig=17, hostCftMode=1$"
NCCL_IB_HCA=mlx5 NCCL_ALGO='^ring' NCCL_BUFFSIZE=1 NCCL_IB_DISABLE=1 expect 0 processes 3 sendrecv init
[ "$(grep -c 'have no effect under Gantry' "$tmp/err")" = 1 ] || die "not one line about variables without effect"
like err "gantry WARN comm: these variables are set but have no effect under Gantry: NCCL_BUFFSIZE, NCCL_IB_HCA, NCCL_ALGO$"
NCCL_COMM_BLOCKING=0 expect 0 processes 2 nonblocking
exit $failed
