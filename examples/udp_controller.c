/* A controller in C beside a plant, over UDP: the other side of bayespilco/deploy/link.

       bayespilco export DIR --out controller.c
       cc -std=c99 -O2 -D_POSIX_C_SOURCE=200112L -I. udp_controller.c controller.c -o udp_controller -lm
       ./udp_controller 127.0.0.1 9000 100

   The last number is that of the steps. It prints for each step what the sensors said, the action, and the restarts. A
   sample that does not come within the time below is missing; one that comes twice or too late is not used. */
#include <math.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "controller.h"

#ifndef WAIT_MS
#define WAIT_MS 500
#endif

static unsigned check(const char *text)
{
    unsigned sum = 0;
    while (*text && *text != '*') sum ^= (unsigned char)*text++;
    return sum;
}

/* Send "kind episode [number values]*check". */
static void tell(int wire, char kind, long episode, long number, const double *values, int count)
{
    char line[1024];
    int i, used = snprintf(line, sizeof line, "%c %ld", kind, episode);
    if (kind == 'a') used += snprintf(line + used, sizeof line - (size_t)used, " %ld", number);
    for (i = 0; i < count; i++) used += snprintf(line + used, sizeof line - (size_t)used, " %.17g", values[i]);
    used += snprintf(line + used, sizeof line - (size_t)used, "*%02x\n", check(line));
    if (send(wire, line, (size_t)used, 0) < 0) perror("send");
}

/* The number of the sample in a line, and its values; -1 if it is none of this episode. */
static long sample(char *line, long episode, double *z)
{
    char *star = strrchr(line, '*'), *end;
    long of, number;
    int i;
    if (line[0] != 'z' || !star || strtoul(star + 1, NULL, 16) != check(line)) return -1;
    *star = 0;
    of = strtol(line + 1, &end, 10);
    number = strtol(end, &end, 10);
    for (i = 0; i < controller_SENSORS; i++) z[i] = strtod(end, &end);
    return of == episode ? number : -1;
}

/* Wait for sample `due` or a later one. Returns its number, or -1 if none comes in time: then all is missing. */
static long listen_for(int wire, long episode, long due, double *z)
{
    struct timeval left = {WAIT_MS / 1000, (WAIT_MS % 1000) * 1000L};
    int i;
    for (;;) {
        char line[1024];
        ssize_t length;
        long number;
        fd_set set;
        FD_ZERO(&set);
        FD_SET(wire, &set);
        if (select(wire + 1, &set, NULL, NULL, &left) <= 0) break; /* Linux counts `left` down */
        length = recv(wire, line, sizeof line - 1, 0);
        if (length <= 0) continue;
        line[length] = 0;
        number = sample(line, episode, z);
        if (number >= due) return number;
    }
    for (i = 0; i < controller_SENSORS; i++) z[i] = NAN;
    return -1;
}

int main(int count, char **arguments)
{
    static controller_t controller;
    struct addrinfo hints, *address;
    double z[controller_SENSORS], u[controller_ACTIONS], rest[controller_ACTIONS];
    long episode = (long)getpid(), due = 0, step, number;
    int wire, i, tries;
    if (count != 4) return fprintf(stderr, "usage: udp_controller HOST PORT STEPS\n"), 2;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_DGRAM;
    if (getaddrinfo(arguments[1], arguments[2], &hints, &address)) return fprintf(stderr, "no such host\n"), 1;
    wire = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    if (wire < 0 || connect(wire, address->ai_addr, address->ai_addrlen)) return perror("connect"), 1;
    freeaddrinfo(address);
    controller_reset(&controller);
    number = -1;
    for (tries = 0; tries < 20 && number < 0; tries++) {
        tell(wire, 'h', episode, 0, NULL, 0);
        number = listen_for(wire, episode, 0, z);
    }
    if (number < 0) return fprintf(stderr, "the plant does not answer\n"), 1;
    for (step = 0; step < atol(arguments[3]); step++) {
        due = number < 0 ? due + 1 : number + 1;
        controller_act(&controller, z, u);
        for (i = 0; i < controller_SENSORS; i++) printf("%.17g ", z[i]);
        for (i = 0; i < controller_ACTIONS; i++) printf("%.17g ", u[i]);
        printf("%d\n", controller.restarts);
        tell(wire, 'a', episode, due - 1, u, controller_ACTIONS);
        number = listen_for(wire, episode, due, z);
    }
    for (i = 0; i < controller_ACTIONS; i++) rest[i] = 0;
    for (tries = 0; tries < 3; tries++) tell(wire, 'a', episode, due, rest, controller_ACTIONS);
    close(wire);
    return 0;
}
