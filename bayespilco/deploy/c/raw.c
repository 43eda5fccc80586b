static int is_seen(real x) { return ABS(x) <= LARGEST; } /* false for NaN and infinity */

/* The policy sees what the last observation alone says, and the rows that are known. */
void NAME_act(NAME_t *c, const NAME_real z[SENSORS], NAME_real u[ACTIONS])
{
    real following[STATES];
    int s, i;
    for (s = 0; s < SENSORS; s++) {
        if (is_seen(z[s])) c->latest[s] = z[s];
        c->missed[s] = is_seen(z[s]) ? 0 : next(c->missed[s]);
    }
    for (i = 0; i < ESTIMATED; i++) {
        real estimate = 0;
        int told = 1; /* before its first sample a sensor says what is expected: what it measures stays as it was */
        for (s = 0; s < SENSORS; s++) {
            if (is_seen(c->latest[s])) estimate += ESTIMATE[i][s] * (c->latest[s] - SENSOR_OFFSET[s]);
            else if (ESTIMATE[i][s] != 0) told = 0;
        }
        if (told) c->mean[i] = estimate;
    }
    policy(c, u);
    for (i = ESTIMATED; i < STATES; i++) following[i] = known_row(c, u, i);
    for (i = ESTIMATED; i < STATES; i++) c->mean[i] = following[i];
    c->steps = next(c->steps);
}
