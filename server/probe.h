/* The health sub-command: asks a running server on this machine whether it takes traffic. */
#ifndef SERVER_PROBE_H
#define SERVER_PROBE_H

/* argv[0] is skipped ("health"). Takes the options of serve, so that the same environment and file say where the
 * server is. Prints one line. Exit code: 0 ready, 1 not ready or no answer, 2 bad options. */
int srv_health_main(int argc, char **argv);

#endif
