# Copies the shared libraries that the module and the program need into the wheel, under the names they are looked for.
file(GET_RUNTIME_DEPENDENCIES
  MODULES "${module}" EXECUTABLES "${program}"
  RESOLVED_DEPENDENCIES_VAR libraries
  PRE_EXCLUDE_REGEXES "${system_libraries}")
foreach(library IN LISTS libraries)
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/widehead/lib" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES "${library}")
endforeach()
