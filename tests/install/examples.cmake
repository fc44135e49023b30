# Installs into a fresh prefix, then configures and builds the examples against it alone, and runs
# the library's.
file(REMOVE_RECURSE ${SCRATCH}/prefix ${SCRATCH}/library ${SCRATCH}/module)
set(flags)
if(SANITIZE)
  set(flags -fsanitize=${SANITIZE})
endif()

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(build example into)
  run(${CMAKE_COMMAND} -S ${EXAMPLES}/${example} -B ${SCRATCH}/${into} -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${flags}"
      -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix)
  run(${CMAKE_COMMAND} --build ${SCRATCH}/${into})
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
build(library library)
build(kv_connector_module module)
run(${MAKE_MODEL} ${SCRATCH}/tiny.gguf)
run(${SCRATCH}/library/sleeping_engine ${SCRATCH}/tiny.gguf)
