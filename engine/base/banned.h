/* Forced into every file of ours (-include): calls that have no safe use fail to compile. */
#ifndef ENGINE_BASE_BANNED_H
#define ENGINE_BASE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf gets strtok asctime ctime gmtime
#undef alloca
#pragma GCC poison alloca atoi atol atof tmpnam mktemp system popen

#endif
