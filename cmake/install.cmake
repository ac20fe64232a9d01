# What `make install` puts where, what other builds find it by, `make uninstall`, and the Debian package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gantry)
set(example_dir ${CMAKE_INSTALL_DOCDIR}/examples)
set(man_sections 1 3 5 7)

# The folders are looked at first: `make uninstall` removes those that were not there.
set(folders ${CMAKE_INSTALL_BINDIR} ${CMAKE_INSTALL_LIBDIR} ${CMAKE_INSTALL_LIBDIR}/gantry-nccl ${pc_dir} ${package_dir} ${CMAKE_INSTALL_INCLUDEDIR}/gantry
  ${example_dir})
# Pages, and what they link to.
file(GLOB_RECURSE docs CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} docs/* bench/results/*)
list(APPEND docs tests/transport/mailbox.c)
foreach(page ${docs})
  cmake_path(GET page PARENT_PATH folder)
  list(APPEND folders ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
list(REMOVE_DUPLICATES folders)
foreach(section ${man_sections})
  list(APPEND folders ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()
install(CODE "set(build \"${CMAKE_BINARY_DIR}\")
set(folders \"${folders}\")
set(libdir \"${CMAKE_INSTALL_LIBDIR}\")
set(soname \"$<TARGET_SONAME_FILE_NAME:gantry>\")")
install(SCRIPT cmake/install_before.cmake)

install(TARGETS gantry EXPORT gantry INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS nccl-net-gantry gantry-emulated gantry_tool)
# What NCCL opens by itself is one for all plugins of the machine, and other packages bring theirs: only who asks for it gets it.
option(GANTRY_LIBNCCL_NET "Install libnccl-net.so, a link to the plugin, which NCCL opens where NCCL_NET_PLUGIN is not set" OFF)
if(GANTRY_LIBNCCL_NET)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/link)
  file(CREATE_LINK libnccl-net-gantry.so ${CMAKE_BINARY_DIR}/link/libnccl-net.so SYMBOLIC)
  install(FILES ${CMAKE_BINARY_DIR}/link/libnccl-net.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
# RCCL looks for its plugins under names of its own, and loads NCCL's tables from them.
option(GANTRY_LIBRCCL_NET "Install librccl-net-gantry.so, a link to the plugin, which RCCL opens with NCCL_NET_PLUGIN=gantry" OFF)
if(GANTRY_LIBRCCL_NET)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/link)
  file(CREATE_LINK libnccl-net-gantry.so ${CMAKE_BINARY_DIR}/link/librccl-net-gantry.so SYMBOLIC)
  install(FILES ${CMAKE_BINARY_DIR}/link/librccl-net-gantry.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
# Apart: in a folder that the dynamic linker searches, every program would take it for NCCL's. And not in one called gantry: NCCL opens
# a file of the plugin's name first.
install(TARGETS nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/gantry-nccl)
install(DIRECTORY include/gantry DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(section ${man_sections})
  install(DIRECTORY man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} FILES_MATCHING PATTERN "*.${section}")
endforeach()
# `man gantry_send` shows gantry-comm(3): each function of a synopsis leads to its page.
file(GLOB pages CONFIGURE_DEPENDS man/*.3)
file(REMOVE_RECURSE ${CMAKE_BINARY_DIR}/man3)
foreach(page ${pages})
  get_filename_component(name ${page} NAME)
  file(STRINGS ${page} lines REGEX "gantry_[a-z_]+\\(")
  foreach(line ${lines})
    string(REGEX MATCH "gantry_[a-z_]+\\(" function "${line}")
    string(REPLACE "(" ".3" alias ${function})
    file(WRITE ${CMAKE_BINARY_DIR}/man3/${alias} ".so man3/${name}\n")
  endforeach()
endforeach()
install(DIRECTORY ${CMAKE_BINARY_DIR}/man3/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
# As in the tree, so that the links between the pages hold.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY bench/results DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench)
install(FILES tests/transport/mailbox.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/tests/transport)
install(DIRECTORY examples/ DESTINATION ${example_dir})

# find_package(gantry) gives gantry::gantry. Until 1.0 the interface may change with every minor version.
install(EXPORT gantry NAMESPACE gantry:: FILE gantry-targets.cmake DESTINATION ${package_dir})
file(WRITE ${CMAKE_BINARY_DIR}/gantry-config.cmake "include(\${CMAKE_CURRENT_LIST_DIR}/gantry-targets.cmake)\n")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/gantry-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/gantry-config.cmake ${CMAKE_BINARY_DIR}/gantry-config-version.cmake DESTINATION ${package_dir})

# pkg-config. The prefix is found from where gantry.pc lies, since `cmake --install --prefix` may still change it.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${pc_dir} OUTPUT_VARIABLE up)
set(pc_prefix "\${pcfiledir}/${up}")
foreach(name libdir includedir)
  string(TOUPPER ${name} upper)
  set(pc_${name} "\${prefix}/${CMAKE_INSTALL_${upper}}")
  if(IS_ABSOLUTE ${CMAKE_INSTALL_${upper}})
    set(pc_prefix ${CMAKE_INSTALL_PREFIX})
    set(pc_${name} ${CMAKE_INSTALL_${upper}})
  endif()
endforeach()
configure_file(cmake/gantry.pc.in ${CMAKE_BINARY_DIR}/gantry.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/gantry.pc DESTINATION ${pc_dir})

install(SCRIPT cmake/install_after.cmake)
include(cmake/package.cmake)
