# Copies the shared libraries that the module and the program need into the wheel, under the names they are looked for.
file(GET_RUNTIME_DEPENDENCIES
  MODULES "${module}" EXECUTABLES "${program}"
  RESOLVED_DEPENDENCIES_VAR libraries
  PRE_EXCLUDE_REGEXES "^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\\+\\+))\\.so.*$")
foreach(library IN LISTS libraries)
  get_filename_component(name "${library}" NAME)
  get_filename_component(real "${library}" REALPATH)  # a wheel holds no links: the file, by the name it is asked for
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/widehead/lib" TYPE PROGRAM FILES "${real}" RENAME "${name}")
endforeach()
if(strip)
  execute_process(COMMAND "${strip}" "${CMAKE_INSTALL_PREFIX}/widehead/bin/widehead" COMMAND_ERROR_IS_FATAL ANY)
endif()
