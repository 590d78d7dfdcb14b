# Which Python the module is built for and the tests run with. With VRAMEST_DEV_VENV, which the presets that build the
# module switch on, it is a virtual environment of the build folder's own, holding pybind11 and what the tests need; else
# the python3 that is found. Sets VRAMEST_PYTHON.
find_program(VRAMEST_BASE_PYTHON NAMES python3 python REQUIRED DOC "The Python to build for, or to make the environment from")
set(VRAMEST_PYTHON ${VRAMEST_BASE_PYTHON})

if(VRAMEST_DEV_VENV)
  set(needs ${PROJECT_SOURCE_DIR}/tests/python/requirements.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${needs})
  set(venv ${PROJECT_BINARY_DIR}/venv)
  file(SHA256 ${needs} wanted)
  set(installed "")
  if(EXISTS ${venv}/installed)
    file(READ ${venv}/installed installed)
  endif()
  if(NOT installed STREQUAL wanted)
    message(STATUS "Making ${venv}: pybind11 and the tests' packages")
    execute_process(COMMAND ${VRAMEST_BASE_PYTHON} -m venv --clear ${venv} COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${venv}/bin/python -m pip install --quiet --disable-pip-version-check -r ${needs}
                    COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE ${venv}/installed ${wanted})
  endif()
  set(VRAMEST_PYTHON ${venv}/bin/python)
endif()
