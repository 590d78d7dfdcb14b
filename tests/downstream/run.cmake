# Installs the build into a prefix of its own, then configures, builds and runs program/ against it, as a user would.
# Given: BUILD (the build folder), WORK (a folder to fill), SOURCE (program/), GENERATOR, COMPILER.
file(REMOVE_RECURSE ${WORK})
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/downstream)

# What is installed is public: nothing of src/ came along.
file(GLOB_RECURSE headers RELATIVE ${WORK}/prefix/include ${WORK}/prefix/include/*)
foreach(header IN LISTS headers)
  if(NOT header MATCHES "^vram/.*\\.hpp$")
    message(FATAL_ERROR "${header} was installed")
  endif()
endforeach()
