/* Finds the backend by name; GPU ones are plug-ins. See backend.h. */
#include "engine/backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef STEPD_LIBDIR
#define STEPD_LIBDIR "/usr/local/lib/stepd"
#endif

/* A loaded plug-in stays loaded: its backend struct is static storage inside it. */
static const struct backend *plugin_symbol(void *so, const char *path, struct err *e)
{
    const struct backend *b = dlsym(so, "stepd_backend");
    if (!b) {
        err_set(e, ERR_NOTFOUND, "%s has no symbol stepd_backend", path);
        return NULL;
    }
    if (b->abi != BACKEND_ABI) {
        err_set(e, ERR_UNSUPPORTED, "%s has interface version %u, this program %d", path, b->abi,
                BACKEND_ABI);
        return NULL;
    }
    return b;
}

static bool exe_dir(char *dst, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", dst, size - 1);
    if (n <= 0)
        return false;
    dst[n] = 0;
    char *slash = strrchr(dst, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

/* Looks in $STEPD_LIBDIR alone when that is set (tests), else beside the executable, then in the
 * installed folder. The first file that exists decides. */
static int plugin_find(const char *file, const struct backend **out, struct err *e)
{
    char exe[900] = "", path[1024];
    const char *env = getenv("STEPD_LIBDIR");
    const char *dir[2] = {env ? env : (exe_dir(exe, sizeof exe) ? exe : NULL),
                          env ? NULL : STEPD_LIBDIR};
    for (int i = 0; i < 2; i++) {
        if (!dir[i] || snprintf(path, sizeof path, "%s/%s", dir[i], file) >= (int)sizeof path ||
            access(path, R_OK))
            continue;
        void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!so)
            return err_set(e, ERR_NOTFOUND, "plug-in: %s", dlerror());
        *out = plugin_symbol(so, path, e);
        if (*out)
            return 0;
        dlclose(so);
        return e ? e->code : ERR_NOTFOUND;
    }
    return err_set(e, ERR_NOTFOUND, "plug-in %s is neither beside the program nor in %s", file,
                   env ? env : STEPD_LIBDIR);
}

/* A device exists if it can be opened. */
static bool device_exists(const struct backend *b)
{
    struct dev *d = NULL;
    struct err e;
    if (b->open(&d, &(struct backend_opts){0}, &e))
        return false;
    b->close(d);
    return true;
}

int backend_find(const char *device, const struct backend **out, struct err *e)
{
    struct err local = {0};
    *out = NULL;
    if (!device || !strcmp(device, "auto")) {
        if (plugin_find("stepd-cuda.so", out, &local) || !device_exists(*out))
            *out = &cpu_backend;
        return 0;
    }
    if (!strcmp(device, "cpu"))
        *out = &cpu_backend;
    else if (!strcmp(device, "ref"))
        *out = &ref_backend;
    else if (!strcmp(device, "cuda") || !strcmp(device, "cuda-emu")) {
        int rc = plugin_find(device[4] ? "stepd-cuda-emu.so" : "stepd-cuda.so", out, &local);
        return rc ? err_set(e, rc, "device %s: %s", device, local.text) : 0;
    } else
        return err_set(e, ERR_NOTFOUND,
                       "device \"%.32s\" is none of auto, cpu, ref, cuda, cuda-emu, null", device);
    return 0;
}
