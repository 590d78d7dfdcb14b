# Packages first (Debian, conda, vcpkg); with VRAMEST_BUNDLED the same libraries are fetched by hash and linked
# statically. No third-party type stands in a public header, so these stay private to the library.
find_package(Threads REQUIRED)

if(VRAMEST_BUNDLED)
  include(Bundled)
else()
  find_package(yaml-cpp REQUIRED)
  find_package(nlohmann_json REQUIRED)
  find_package(tomlplusplus QUIET)
  find_package(CLI11 REQUIRED)
endif()

# yaml-cpp 0.7 exports `yaml-cpp`, 0.8 `yaml-cpp::yaml-cpp`.
add_library(vram_yaml INTERFACE)
if(TARGET yaml-cpp::yaml-cpp)
  target_link_libraries(vram_yaml INTERFACE yaml-cpp::yaml-cpp)
else()
  target_link_libraries(vram_yaml INTERFACE yaml-cpp)
endif()

# Debian 12's libtomlplusplus-dev ships a pkg-config file and headers; newer releases a CMake package.
add_library(vram_toml INTERFACE)
if(TARGET tomlplusplus::tomlplusplus)
  target_link_libraries(vram_toml INTERFACE tomlplusplus::tomlplusplus)
else()
  find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
  target_include_directories(vram_toml SYSTEM INTERFACE ${TOMLPLUSPLUS_INCLUDE_DIR})
endif()
