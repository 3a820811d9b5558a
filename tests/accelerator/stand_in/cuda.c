/* A stand-in for NVIDIA's libcuda.so.1, as far as a rank asks it itself, without CuPy.
 *
 * STAND_IN_CUDA_LOG    file to which every context is appended that is made or becomes current: its GPU, and whether a
 *                      library of MPI was loaded by then
 * STAND_IN_CUDA_GPUS   GPUs of the host (default 4)
 * STAND_IN_CUDA_HANG   what never returns: `load`, the constructor, or the name of a function
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static void hang_in(const char *where) {
    const char *named = getenv("STAND_IN_CUDA_HANG");
    while (named && strcmp(named, where) == 0) {
        sleep(1); /* again and again, as a signal ends it */
    }
}

__attribute__((constructor)) static void load(void) { hang_in("load"); }

static int mapped(const char *library) {
    char line[1024];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        found |= strstr(line, library) != NULL;
    }
    if (maps) {
        fclose(maps);
    }
    return found;
}

int cuDriverGetVersion(int *version) {
    *version = 12080;
    return 0;
}

int cuInit(unsigned int flags) {
    hang_in("cuInit");
    return flags ? 1 : 0;
}

int cuDeviceGetCount(int *count) {
    *count = number("STAND_IN_CUDA_GPUS", 4);
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

static void write_down(long device) {
    const char *log = getenv("STAND_IN_CUDA_LOG");
    FILE *file = log ? fopen(log, "a") : NULL;
    if (file) {
        fprintf(file, "GPU %ld %s MPI is loaded\n", device, mapped("/libmpi") ? "after" : "before");
        fclose(file);
    }
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    hang_in("cuDevicePrimaryCtxRetain");
    write_down(device);
    *context = (void *)(intptr_t)(0x100000000 + device); /* more than 32 bits: a handle that is cut is found */
    return 0;
}

int cuCtxSetCurrent(void *context) {
    write_down((long)((intptr_t)context - 0x100000000));
    return 0;
}
