# After everything is installed: the record that `make uninstall` reads, and what is left to do.
if(CMAKE_INSTALL_COMPONENT)
  return()
endif()

string(REPLACE "/" "-" name "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
set(record "${build}/installed${name}.txt")

# Files and folders of earlier runs stay in the record as long as they are there: nothing is forgotten.
set(lines ${made})
foreach(file ${CMAKE_INSTALL_MANIFEST_FILES})
  list(APPEND lines "$ENV{DESTDIR}${file}")
endforeach()
if(EXISTS "${record}")
  file(STRINGS "${record}" earlier)
  list(APPEND lines ${earlier})
endif()
list(REMOVE_DUPLICATES lines)
list(SORT lines ORDER DESCENDING) # what is in a folder comes before the folder
list(JOIN lines "\n" lines)
file(WRITE "${record}" "${lines}\n")

# Where the linker looks for libraries it looks by its cache, which is root's to refresh.
cmake_path(ABSOLUTE_PATH libdir BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" NORMALIZE)
find_program(LDCONFIG ldconfig PATHS /sbin /usr/sbin)
if(LDCONFIG AND "$ENV{DESTDIR}" STREQUAL "")
  execute_process(COMMAND ${LDCONFIG} -vNX OUTPUT_VARIABLE searched ERROR_QUIET)
  execute_process(COMMAND ${LDCONFIG} -p OUTPUT_VARIABLE cached ERROR_QUIET)
  string(FIND "\n${searched}" "\n${libdir}:" at)
  foreach(name ${soname} libnccl-net-gantry.so)
    string(FIND "${cached}" " => ${libdir}/${name}\n" here)
    if(at GREATER_EQUAL 0 AND here LESS 0)
      message("The linker's cache does not have ${libdir}/${name} yet: run ldconfig as root.")
      break()
    endif()
  endforeach()
endif()
