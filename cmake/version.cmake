# The version number stands in include/gantry/version.h: GANTRY_VERSION is the same as there.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../include/gantry/version.h GANTRY_VERSION
  REGEX "^#define GANTRY_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
list(TRANSFORM GANTRY_VERSION REPLACE ".* " "")
list(JOIN GANTRY_VERSION "." GANTRY_VERSION)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS include/gantry/version.h)
