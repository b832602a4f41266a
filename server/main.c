/* The program: sub-commands. */
#include <stdio.h>

#include "conf/conf.h"
#include "server/bench.h"
#include "server/inspect.h"
#include "server/plan.h"
#include "server/probe.h"
#include "server/pull.h"
#include "server/serve.h"

static int options_main(int argc, char **argv)
{
    struct buf b = {0};
    const char *kind = argc > 1 ? argv[1] : "--help";
    if (strcmp(kind, "--markdown") == 0)
        conf_text_markdown(&b);
    else if (strcmp(kind, "--ini") == 0)
        conf_text_sample(&b);
    else
        conf_text_help(&b);
    fwrite(b.p, 1, b.len, stdout);
    buf_free(&b);
    return 0;
}

static int version_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("stepd " STEPD_VERSION);
    return 0;
}

static int help_main(int argc, char **argv);

/* `run` gets the sub-command's name as argv[0]. */
static const struct {
    const char *name, *args, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"serve", "MODEL...", "serve models over HTTP; stepd serve --help lists the options",
     srv_serve_main},
    {"pull", "NAME", "fetch a model; stepd pull --help", srv_pull_main},
    {"plan", "MODEL", "memory that a model needs, without loading it", srv_plan_main},
    {"inspect", "FILE", "what is in a model file", srv_inspect_main},
    {"quantize", "IN OUT TYPE", "a GGUF file in another type; stepd quantize --help",
     srv_quantize_main},
    {"bench", "--url URL", "measure a running server; stepd bench --help", srv_bench_main},
    {"health", "", "ask a running server whether it is ready: exit code 0 or 1", srv_health_main},
    {"options", "[--markdown|--ini]", "print the table of options", options_main},
    {"version", "", "print the version", version_main},
    {"help", "", "this text", help_main},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int help_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("stepd " STEPD_VERSION ": an OpenAI-compatible inference server\n\nusage: stepd COMMAND "
         "...");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-8s %-20s %s\n", commands[i].name, commands[i].args, commands[i].help);
    puts("\nstart here: stepd pull smollm2-135m && stepd serve smollm2-135m");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return help_main(0, NULL);
    if (strcmp(argv[1], "--version") == 0)
        return version_main(0, NULL);
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "stepd: unknown command '%.40s'; stepd help lists them\n", argv[1]);
    return 2;
}
