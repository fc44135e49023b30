# Compiler settings, dependencies, and the two functions that every folder of src/ uses.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(dm_options INTERFACE)
# g++ 12 sees overflows in std::vector's own growth that are not there.
target_compile_options(dm_options INTERFACE -Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor
                                            -Wno-missing-field-initializers -Wno-stringop-overflow
                                            -fno-math-errno -ffp-contract=off)
if(DORMOUSE_WERROR)
  target_compile_options(dm_options INTERFACE -Werror)
endif()
if(DORMOUSE_SANITIZE)
  target_compile_options(dm_options INTERFACE -fsanitize=${DORMOUSE_SANITIZE} -fno-sanitize-recover=all
                         -fno-omit-frame-pointer -g1)
  target_link_options(dm_options INTERFACE -fsanitize=${DORMOUSE_SANITIZE})
else()
  target_link_options(dm_options INTERFACE -static-libstdc++ -static-libgcc)
endif()

find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
# Static where Debian has an archive: the binary must run where these packages are not installed.
foreach(archive xxhash crypto utf8proc)
  string(TOUPPER ${archive} upper)
  find_library(DM_${upper}_ARCHIVE lib${archive}.a REQUIRED)
endforeach()

# dm_library(FOLDER SOURCES... [LINK libs...]): the objects of one folder, gathered into `dormouse`.
function(dm_library folder)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(dm_${folder} OBJECT ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(dm_${folder} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(dm_${folder} PRIVATE dm_options)
  set_property(GLOBAL APPEND PROPERTY DM_OBJECT_LIBRARIES dm_${folder})
endfunction()

# dm_test(FOLDER SOURCES...): one test program for a folder, linked against the whole library.
function(dm_test folder)
  if(NOT DORMOUSE_BUILD_TESTS)
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${folder}_test ${ARGN})
  target_link_libraries(${folder}_test PRIVATE dm_options dormouse dormouse_testing GTest::gtest GTest::gmock GTest::gtest_main)
  set_property(GLOBAL APPEND PROPERTY DM_TESTS ${folder}_test)
  add_test(NAME ${folder} COMMAND ${folder}_test)
  # One at a time: some compare figures of the whole machine (shared memory in use) around what they do.
  set_tests_properties(${folder} PROPERTIES TIMEOUT 600 RESOURCE_LOCK shared_memory)
endfunction()

enable_testing()
