# One interface target carries the project's warnings and sanitizers, so that every target reads the same.
add_library(vram_options INTERFACE)
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options(vram_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
                                                -Wnon-virtual-dtor -Wold-style-cast -Wcast-align -Woverloaded-virtual)
  if(VRAMEST_WERROR)
    target_compile_options(vram_options INTERFACE -Werror)
  endif()
  if(VRAMEST_SANITIZE)
    target_compile_options(vram_options INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
                                                  -fno-omit-frame-pointer)
    target_link_options(vram_options INTERFACE -fsanitize=address,undefined)
  endif()
elseif(MSVC)
  target_compile_options(vram_options INTERFACE /W4 /permissive-)
endif()
