/* Facts about a TCP socket. Any thread. */
#ifndef SERVER_TCP_INFO_H
#define SERVER_TCP_INFO_H

#include <stdint.h>

/* Bytes that the kernel has received on the socket; 0 when it does not say (or it is no TCP socket). */
uint64_t tcp_info_received(int fd);

#endif
