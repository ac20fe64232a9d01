# CPack runs this over the tree that is to be packed: what Debian's policy asks for and `make install` does not do.
foreach(program dpkg-shlibdeps file gzip)
  find_program(found_${program} ${program})
  if(NOT found_${program})
    message(FATAL_ERROR "${program} is missing, without which there is no package: apt-get install dpkg-dev file gzip")
  endif()
endforeach()

set(share ${CPACK_TEMPORARY_DIRECTORY}/usr/share)
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${share}/doc/gantry/changelog.Debian
"gantry (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * What users notice is in CHANGELOG.md.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
file(WRITE ${share}/doc/gantry/copyright
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gantry

Files: *
Copyright: the authors of Gantry
License: Apache-2.0
 The whole text of the license is in /usr/share/common-licenses/Apache-2.0.
")
file(GLOB pages ${share}/man/man*/*)
execute_process(COMMAND gzip -9n ${share}/doc/gantry/changelog.Debian ${pages} COMMAND_ERROR_IS_FATAL ANY)
