/* `stepd pull NAME`: fetch a model into the models folder. Main thread, before anything else runs. */
#ifndef SERVER_PULL_H
#define SERVER_PULL_H

/* argv[0] is skipped ("pull"). Paths of what is there go to stdout, one a line; all else to stderr.
 * Exit status: 0 present and checked, 1 failed, 2 wrong usage. */
int srv_pull_main(int argc, char **argv);

#endif
