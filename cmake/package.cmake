# The Debian package: `cpack` in the build folder makes build/gantry_VERSION_ARCHITECTURE.deb.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gantry)
set(CPACK_PACKAGE_CONTACT "Gantry maintainers <maintainers@gantry.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
# By component, by which install_before.cmake and install_after.cmake know that this is no install to be undone.
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};gantry;Unspecified;/")
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/package_debian.cmake)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "A net plugin for stock NCCL, a communicator and a pipeline of its own between
GPU and host memory, and a command that measures and examines all of them.")
# CPack's own shlibs would have a line for the plugin too, with which nobody links.
file(WRITE ${CMAKE_BINARY_DIR}/debian/shlibs "libgantry ${PROJECT_VERSION_MAJOR} gantry (>= ${PROJECT_VERSION})\n")
file(WRITE ${CMAKE_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/debian/shlibs ${CMAKE_BINARY_DIR}/debian/triggers)
include(CPack)
