# Parts that were not found: the cache says NOTFOUND, and only the next run of CMake looks for them again. So the folders
# that were searched become inputs of the build's configuration: whatever is installed there, by `make test` or by hand,
# changes its folder, and the next build configures anew. A build that has all parts does not depend on them.

# gantry_look_again(FOLDER...): those, and where headers and libraries are looked for.
function(gantry_look_again)
  set(folders ${ARGN})
  foreach(prefix ${CMAKE_PREFIX_PATH} ${CMAKE_SYSTEM_PREFIX_PATH})
    foreach(folder include lib lib64 include/${CMAKE_LIBRARY_ARCHITECTURE} lib/${CMAKE_LIBRARY_ARCHITECTURE})
      list(APPEND folders ${prefix}/${folder})
      foreach(root ${CMAKE_FIND_ROOT_PATH})
        list(APPEND folders ${root}${prefix}/${folder})
      endforeach()
    endforeach()
  endforeach()
  foreach(folder ${folders})
    if(IS_DIRECTORY ${folder})
      file(REAL_PATH ${folder} folder)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder})
    endif()
  endforeach()
endfunction()

if(NOT OPENSSL_FOUND OR NOT HWLOC_LIBRARY OR NOT HWLOC_INCLUDE_DIR OR NOT LIBMNL_LIBRARY OR NOT LIBMNL_INCLUDE_DIR)
  gantry_look_again()
endif()
if(GANTRY_CUDA AND NOT GANTRY_HAVE_CUDA)
  gantry_look_again(/usr/bin /usr/local /usr/local/bin /usr/local/cuda/bin)
endif()
