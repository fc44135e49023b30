# Gathers the folders' objects into the one library `dormouse`.
get_property(objects GLOBAL PROPERTY DM_OBJECT_LIBRARIES)
set(object_files)
foreach(object IN LISTS objects)
  if(NOT object STREQUAL dm_testing)
    list(APPEND object_files $<TARGET_OBJECTS:${object}>)
  endif()
endforeach()
add_library(dormouse STATIC ${object_files})
add_library(dormouse::dormouse ALIAS dormouse)
target_include_directories(dormouse PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                           $<INSTALL_INTERFACE:include>
                                    PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_include_directories(dormouse INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
target_link_libraries(dormouse PUBLIC Threads::Threads ${DM_XXHASH_ARCHIVE}
                                      ${DM_CRYPTO_ARCHIVE} ${DM_UTF8PROC_ARCHIVE} ${CMAKE_DL_LIBS})
if(TARGET dm_testing)
  add_library(dormouse_testing STATIC $<TARGET_OBJECTS:dm_testing>)
  target_link_libraries(dormouse_testing PUBLIC dormouse)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/install.cmake)
