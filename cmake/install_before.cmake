# Before anything is installed: which folders will be made. CPack installs a component into a folder of its own, of which
# nothing is recorded.
set(made "")
if(NOT CMAKE_INSTALL_COMPONENT)
  foreach(folder ${folders})
    cmake_path(ABSOLUTE_PATH folder BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
    set(folder "$ENV{DESTDIR}${folder}")
    while(NOT EXISTS "${folder}")
      list(APPEND made "${folder}")
      cmake_path(GET folder PARENT_PATH folder)
    endwhile()
  endforeach()
endif()
