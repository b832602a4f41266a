/* `stepd inspect` and `stepd quantize`. */
#ifndef SERVER_INSPECT_H
#define SERVER_INSPECT_H

/* argv[0] is the sub-command's name. Return the exit code: 0; 1 an error, told on stderr; 2 wrong use. */
int srv_inspect_main(int argc, char **argv);
int srv_quantize_main(int argc, char **argv);

#endif
