#ifdef NAME_MAIN
/* A program for testing. Each line of the input is an observation, `nan` for what is missing; each line of the output
   is the action, and of each sensor its surprise and whether it was rejected, then the number of restarts. With a
   number as an argument: that many steps on the input's last observation are timed instead. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int count, char **arguments)
{
    static NAME_t controller;
    real z[SENSORS], u[ACTIONS];
    char word[64];
    long step, steps = count > 1 ? atol(arguments[1]) : 0;
    int i, read = 0;
    NAME_reset(&controller);
    while (scanf("%63s", word) == 1) {
        z[read++] = (real)strtod(word, NULL);
        if (read < SENSORS) continue;
        read = 0;
        if (steps > 0) continue;
        NAME_act(&controller, z, u);
        for (i = 0; i < ACTIONS; i++) printf("%.17g ", (double)u[i]);
        for (i = 0; i < SENSORS; i++) printf("%.17g %d ", (double)controller.surprise[i], controller.rejected[i]);
        printf("%d\n", controller.restarts);
    }
    if (steps > 0) {
        clock_t begin = clock();
        double sum = 0;
        for (step = 0; step < steps; step++) {
            NAME_act(&controller, z, u);
            sum += (double)u[0];
        }
        printf("%.9g seconds per step (%g)\n", (double)(clock() - begin) / CLOCKS_PER_SEC / (double)steps, sum);
    }
    return 0;
}
#endif
