/* chat_helper.h - the source of chat_helper.py, made an array by engine/CMakeLists.txt. */
#ifndef ENGINE_CHAT_HELPER_H
#define ENGINE_CHAT_HELPER_H

extern const char chat_helper_source[];          /* NUL-terminated */

#endif
