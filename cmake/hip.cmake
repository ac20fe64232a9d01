# The kernels for AMD's GPUs: hipcc makes a bundle of code objects, and the C file that takes in nvcc's fatbin takes this in
# beside it. The runtime itself is opened at run time, so nothing is linked. Sets GANTRY_HAVE_HIP, and GANTRY_HIP_INCLUDE,
# where hip/hip_runtime_api.h is, for a test.
#
# hipcc is only believed after it has compiled something: it needs AMD's device libraries.

find_program(GANTRY_HIPCC hipcc HINTS ENV ROCM_PATH ENV HIP_PATH PATHS /opt/rocm PATH_SUFFIXES bin)
mark_as_advanced(GANTRY_HIPCC)
set(GANTRY_HAVE_HIP 0)

# Rounding as C has it: without this option a product and a sum become one operation. hipcc adds an option of linking to
# every call.
set(GANTRY_HIPCC_FLAGS -x hip --genco -std=c++17 -O3 -ffp-contract=off -Wno-unused-command-line-argument)
foreach(arch ${GANTRY_HIP_ARCHS})
  list(APPEND GANTRY_HIPCC_FLAGS --offload-arch=${arch})
endforeach()

function(gantry_try_hipcc)
  set(folder ${CMAKE_BINARY_DIR}/hipcc-try)
  file(WRITE ${folder}/try.cpp "#include <hip/hip_runtime.h>\nextern \"C\" __global__ void k(int *p) { *p = 1; }\n")
  execute_process(COMMAND ${GANTRY_HIPCC} ${GANTRY_HIPCC_FLAGS} -o ${folder}/try.bundle ${folder}/try.cpp
    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
  string(REGEX MATCH "[^\n]*(rror|ot found|nsupported)[^\n]*" line "${said}")
  if(status EQUAL 0)
    set(line "")
  elseif(NOT line)
    set(line "exit status ${status}")
  endif()
  set(GANTRY_HIPCC_TRIED "${GANTRY_HIPCC} ${GANTRY_HIPCC_FLAGS}" CACHE INTERNAL "what GANTRY_HIPCC_WHY is about")
  set(GANTRY_HIPCC_WHY "${line}" CACHE INTERNAL "why hipcc does not work; empty: it works")
endfunction()

if(NOT GANTRY_HIP)
  message(STATUS "HIP: switched off (GANTRY_HIP), AMD GPUs will have no kernels")
elseif(NOT GANTRY_HIPCC)
  message(STATUS "HIP: hipcc not found, AMD GPUs will have no kernels (their memory can be used)")
else()
  if(GANTRY_HIPCC_WHY OR NOT "${GANTRY_HIPCC_TRIED}" STREQUAL "${GANTRY_HIPCC} ${GANTRY_HIPCC_FLAGS}")
    gantry_try_hipcc()
  endif()
  if(GANTRY_HIPCC_WHY)
    message(STATUS "HIP: ${GANTRY_HIPCC} does not work, AMD GPUs will have no kernels: ${GANTRY_HIPCC_WHY}")
  else()
    list(JOIN GANTRY_HIP_ARCHS ", " archs)
    message(STATUS "HIP: ${GANTRY_HIPCC}, kernels for ${archs}")
    set(GANTRY_HAVE_HIP 1)
  endif()
endif()

find_path(GANTRY_HIP_INCLUDE hip/hip_runtime_api.h HINTS ENV ROCM_PATH ENV HIP_PATH PATHS /opt/rocm PATH_SUFFIXES include)
mark_as_advanced(GANTRY_HIP_INCLUDE)

# gantry_embed_hip_kernels(NAME FILE.c): beside gantry_embed_kernels, the image in GANTRY_HIP_IMAGE.
function(gantry_embed_hip_kernels name file)
  if(NOT GANTRY_HAVE_HIP)
    return()
  endif()
  set(image ${CMAKE_BINARY_DIR}/${name}.hip)
  add_custom_command(OUTPUT ${image}
    COMMAND ${GANTRY_HIPCC} ${GANTRY_HIPCC_FLAGS} -Wall -Wextra -Wno-missing-field-initializers $<$<BOOL:${GANTRY_WERROR}>:-Werror>
      -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/tools
      -MD -MF ${image}.d -MT ${image} -o ${image} ${CMAKE_SOURCE_DIR}/${file}
    DEPENDS ${CMAKE_SOURCE_DIR}/${file} DEPFILE ${image}.d COMMAND_EXPAND_LISTS
    COMMENT "Compiling the ${name} for AMD GPUs" VERBATIM)
  add_custom_target(hip_${name} DEPENDS ${image}) # for tests/system/hipcc.sh; part of nothing
  set_property(SOURCE ${file} APPEND PROPERTY OBJECT_DEPENDS ${image})
  set_property(SOURCE ${file} APPEND PROPERTY COMPILE_DEFINITIONS "GANTRY_HIP_IMAGE=\"${image}\"")
endfunction()
