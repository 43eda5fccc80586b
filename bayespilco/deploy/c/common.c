/* ---- Act: from the belief to the action ------------------------------------------------------------------------- */

/* A kernel network plus a linear map of the features' mean, squashed to the actuators' range. A policy of the whole
   belief also looks at its covariance. */
static void policy(const NAME_t *c, real *u)
{
    real x[FEATURES];
    int a, i, p, k;
#if POLICY_IS_CAUTIOUS
    real doubt[STATES];
    for (i = 0; i < STATES; i++) /* log(1 + V / r), without the quotient, which might overflow */
        doubt[i] = LOG(POLICY_DOUBT[i] + (c->cov[i][i] > 0 ? c->cov[i][i] : 0)) - LOG(POLICY_DOUBT[i]);
#endif
    for (k = 0; k < POLICY_KEPT; k++) x[k] = c->mean[POLICY_KEEP[k]];
    for (k = 0; k < POLICY_TRIG; k++) {
        int row = POLICY_ANGLES[k / 2];
        real v = POLICY_SEES_COV ? c->cov[row][row] : 0, t = c->mean[row] + (k % 2 ? HALF_PI : 0);
        x[POLICY_KEPT + k] = EXP(-(v > 0 ? v : 0) / 2) * SIN(t);
    }
    for (a = 0; a < ACTIONS; a++) {
        real y = POLICY_OFFSET[a], squashed;
        for (k = 0; k < FEATURES; k++) y += POLICY_SLOPE[a][k] * x[k];
        for (p = 0; p < CENTROIDS; p++) {
            real distance = 0;
            for (k = 0; k < FEATURES; k++) {
                real d = (x[k] - CENTROID[p][k]) * POLICY_INVERSE_SCALES[a][k];
                distance += d * d;
            }
            y += POLICY_WEIGHTS[a][p] * EXP(-distance / 2);
        }
#if POLICY_IS_CAUTIOUS
        {
            real exponent = 0, addend = 0;
            for (i = 0; i < STATES; i++) {
                exponent += POLICY_SCALE[a][i] * doubt[i];
                addend += POLICY_SHIFT[a][i] * doubt[i];
            }
            if (exponent > LARGEST_CAUTION) exponent = LARGEST_CAUTION;
            if (exponent < -LARGEST_CAUTION) exponent = -LARGEST_CAUTION;
            y = EXP(exponent) * y + addend;
        }
#endif
        squashed = (9 * SIN(y) + SIN(3 * y)) / 8;
        if (!(squashed <= 1)) squashed = 1; /* to rounding */
        if (squashed < -1) squashed = -1;
        u[a] = MIDDLE[a] + LIMITS[a] * squashed;
    }
    for (i = 0; i < ACTIONS; i++)
        if (!(ABS(u[i]) <= LARGEST)) u[i] = REST[i];
}

/* Counters stop before they overflow: a controller may run for years. */
static int next(int count) { return count < 2000000000 ? count + 1 : count; }

/* What is known of row `i` of the next state: L x + M u + k. */
static real known_row(const NAME_t *c, const real *u, int i)
{
    int j, step = c->steps >= 0 && c->steps < DRIFT_STEPS ? c->steps : DRIFT_STEPS; /* the last row is zero */
    real sum = DRIFT[step][i];
    for (j = 0; j < STATES; j++) sum += KNOWN_ROWS[i][j] * c->mean[j];
    for (j = 0; j < ACTIONS; j++) sum += KNOWN_ROWS[i][STATES + j] * u[j];
    return sum;
}

void NAME_reset(NAME_t *c)
{
    int i, j, s;
    c->gate = GATE;
    c->patience = PATIENCE;
    c->steps = 0;
    c->restarts = 0;
    for (i = 0; i < STATES; i++) {
        c->mean[i] = INITIAL_MEAN[i];
        for (j = 0; j < STATES; j++) c->cov[i][j] = INITIAL_COV[i][j];
    }
    for (s = 0; s < SENSORS; s++) {
        c->latest[s] = NOTHING;
        c->surprise[s] = NOTHING;
        c->credit[s] = FIRST_CREDIT < PATIENCE ? FIRST_CREDIT : PATIENCE;
        c->rejected[s] = 0;
        c->rejections[s] = 0;
        c->missed[s] = 0;
    }
}

int NAME_follow(NAME_t *c, const NAME_real *references)
{
    int r;
    for (r = 0; r < REFERENCES; r++)
        if (!(ABS(references[r]) <= LARGEST)) return 0;
    for (r = 0; r < REFERENCES; r++) c->mean[REFERENCE_ROWS[r]] = references[r];
    return 1;
}

NAME_real NAME_since_good(const NAME_t *c, int sensor)
{
    return SAMPLING_PERIOD * (real)c->missed[sensor];
}
