/* ---- Small linear algebra ------------------------------------------------------------------------------------- */

static int is_seen(real x) { return ABS(x) <= LARGEST; } /* false for NaN and infinity */

static int all_seen(const real *x, int count)
{
    int i;
    for (i = 0; i < count; i++)
        if (!is_seen(x[i])) return 0;
    return 1;
}

/* The factor of a symmetric positive matrix, A = L L', in its lower triangle. 0 if there is none. */
static int factor(real *A, int n)
{
    int i, j, k;
    for (j = 0; j < n; j++) {
        real pivot = A[j * n + j];
        for (k = 0; k < j; k++) pivot -= A[j * n + k] * A[j * n + k];
        if (!(pivot > 0) || !is_seen(pivot)) return 0;
        pivot = SQRT(pivot);
        A[j * n + j] = pivot;
        for (i = j + 1; i < n; i++) {
            real sum = A[i * n + j];
            for (k = 0; k < j; k++) sum -= A[i * n + k] * A[j * n + k];
            A[i * n + j] = sum / pivot;
        }
    }
    return 1;
}

/* X becomes L^-1 X, for X with `columns` columns. */
static void solve_lower(const real *L, int n, real *X, int columns)
{
    int i, k, c;
    for (i = 0; i < n; i++)
        for (c = 0; c < columns; c++) {
            real sum = X[i * columns + c];
            for (k = 0; k < i; k++) sum -= L[i * n + k] * X[k * columns + c];
            X[i * columns + c] = sum / L[i * n + i];
        }
}

/* A new belief, if all of its numbers are finite. Otherwise the old one stays, and 0 is returned. */
static int believe(NAME_t *c, const real mean[STATES], real cov[STATES][STATES])
{
    int i, j;
    if (!all_seen(mean, STATES) || !all_seen(&cov[0][0], STATES * STATES)) return 0;
    for (i = 0; i < STATES; i++) {
        c->mean[i] = mean[i];
        for (j = 0; j < STATES; j++) c->cov[i][j] = (cov[i][j] + cov[j][i]) / 2;
    }
    return 1;
}

/* ---- Update: combine the belief with the entries of an observation that are believed ---------------------------- */

/* The variance that is expected of a sensor; under the belief widened by WIDE_COV, if `wide`. */
static real sensor_noise(const NAME_t *c, int s, int wide)
{
#if NOISE_GROWS
    real sum = 1;
    int i;
    for (i = 0; i < STATES; i++) {
        real away = c->mean[i] - SENSOR_BEST_AT[s][i];
        sum += SENSOR_GROWTH[s][i] * (away * away + c->cov[i][i] + (wide ? WIDE_COV[i][i] : 0));
    }
    return SENSOR_NOISE[s] * sum;
#else
    (void)c;
    (void)wide;
    return SENSOR_NOISE[s];
#endif
}

/* What was measured minus what was expected, and the predicted variance of that. NaN is missing. */
static void innovation(const NAME_t *c, const real *z, real *difference, real *variance, real *wide)
{
    int s, i, j;
    for (s = 0; s < SENSORS; s++) {
        real expected = SENSOR_OFFSET[s], spread = 0, added = 0;
        for (i = 0; i < STATES; i++) {
            expected += SENSOR_MATRIX[s][i] * c->mean[i];
            for (j = 0; j < STATES; j++) {
                real weight = SENSOR_MATRIX[s][i] * SENSOR_MATRIX[s][j];
                spread += weight * c->cov[i][j];
                added += weight * WIDE_COV[i][j];
            }
        }
        difference[s] = is_seen(z[s]) ? z[s] - expected : NOTHING;
        if (SENSOR_TURN[s] > 0 && ABS(difference[s]) <= MOST_TURNS * SENSOR_TURN[s]) /* an angle: the shortest way around */
            difference[s] -= SENSOR_TURN[s] * RINT(difference[s] / SENSOR_TURN[s]);
        variance[s] = spread + sensor_noise(c, s, 0);
        wide[s] = variance[s] + added + (sensor_noise(c, s, 1) - sensor_noise(c, s, 0));
    }
}

/* The gate: an entry that is not believed becomes NaN. Returns whether the belief has to be widened first. */
static int judge(NAME_t *c, const real *z, real *difference, const real *variance, const real *wide)
{
    int s, widen = 0;
    for (s = 0; s < SENSORS; s++) {
        real size = ABS(difference[s]);
        c->surprise[s] = difference[s] / SQRT(variance[s]);
        if (size > c->gate * SQRT(variance[s]) && size <= c->gate * SQRT(wide[s]) && z[s] != c->latest[s] &&
            c->credit[s] == 0 && is_seen(size) && c->gate > 0)
            widen = 1;
    }
    for (s = 0; s < SENSORS; s++) {
        int seen = is_seen(difference[s]), repeated = seen && z[s] == c->latest[s] && c->credit[s] > 0;
        int beyond = seen && ABS(difference[s]) > c->gate * SQRT(widen ? wide[s] : variance[s]);
        int credit = widen ? 0 : c->credit[s];
        c->rejected[s] = c->gate > 0 && (beyond || repeated);
        if (is_seen(z[s])) c->latest[s] = z[s];
        if (c->rejected[s]) {
            c->rejections[s] = next(c->rejections[s]);
            difference[s] = NOTHING;
            credit -= 1;
        } else if (seen) {
            credit += 1;
        }
        c->missed[s] = seen && !c->rejected[s] ? 0 : next(c->missed[s]);
        if (seen && c->gate > 0) c->credit[s] = credit < 0 ? 0 : credit > c->patience ? c->patience : credit;
        else if (widen) c->credit[s] = 0;
    }
    return widen;
}

/* Kalman's update with the entries that are there, in Joseph's form. 0 if a number overflows. */
static int condition(NAME_t *c, const real *difference)
{
    real S[SENSORS][SENSORS], K[SENSORS][STATES], CV[SENSORS][STATES], rest[STATES][STATES], half[STATES][STATES];
    real mean[STATES], cov[STATES][STATES], noise[SENSORS];
    int s, r, i, j, seen = 0;
    for (s = 0; s < SENSORS; s++) {
        noise[s] = sensor_noise(c, s, 0);
        seen = seen || is_seen(difference[s]);
        for (i = 0; i < STATES; i++) {
            CV[s][i] = 0;
            for (j = 0; j < STATES; j++) CV[s][i] += SENSOR_MATRIX[s][j] * c->cov[j][i];
        }
    }
    if (!seen) return 1;
    for (s = 0; s < SENSORS; s++) { /* C V C' + R, with rows of the identity where nothing is seen */
        for (r = 0; r < SENSORS; r++) {
            S[s][r] = s == r;
            if (!is_seen(difference[s]) || !is_seen(difference[r])) continue;
            S[s][r] = s == r ? noise[s] : 0;
            for (i = 0; i < STATES; i++) S[s][r] += CV[s][i] * SENSOR_MATRIX[r][i];
        }
        for (i = 0; i < STATES; i++) K[s][i] = is_seen(difference[s]) ? CV[s][i] : 0;
    }
    if (!factor(&S[0][0], SENSORS)) return 0;
    solve_lower(&S[0][0], SENSORS, &K[0][0], STATES);
    for (s = SENSORS - 1; s >= 0; s--) /* and L'^-1: the gain, transposed */
        for (i = 0; i < STATES; i++) {
            for (r = s + 1; r < SENSORS; r++) K[s][i] -= S[r][s] * K[r][i];
            K[s][i] /= S[s][s];
        }
    for (i = 0; i < STATES; i++)
        for (j = 0; j < STATES; j++) {
            rest[i][j] = i == j;
            for (s = 0; s < SENSORS; s++) rest[i][j] -= K[s][i] * SENSOR_MATRIX[s][j];
        }
    for (i = 0; i < STATES; i++) {
        mean[i] = c->mean[i];
        for (s = 0; s < SENSORS; s++)
            if (is_seen(difference[s])) mean[i] += K[s][i] * difference[s];
        for (j = 0; j < STATES; j++) {
            half[i][j] = 0;
            for (r = 0; r < STATES; r++) half[i][j] += rest[i][r] * c->cov[r][j];
        }
    }
    for (i = 0; i < STATES; i++)
        for (j = 0; j < STATES; j++) {
            cov[i][j] = 0;
            for (r = 0; r < STATES; r++) cov[i][j] += half[i][r] * rest[j][r];
            for (s = 0; s < SENSORS; s++) cov[i][j] += K[s][i] * noise[s] * K[s][j];
        }
    return believe(c, mean, cov);
}

/* A belief that covers all of the data. Rows that are known stay known (and are those of `mean`). */
static void restart(NAME_t *c)
{
    int i, j;
    c->restarts = next(c->restarts);
    for (i = 0; i < STATES; i++) {
        if (!KNOWN[i] || !is_seen(c->mean[i])) c->mean[i] = INITIAL_MEAN[i];
        for (j = 0; j < STATES; j++) c->cov[i][j] = INITIAL_COV[i][j] + WIDE_COV[i][j];
    }
}

static void update(NAME_t *c, const real *z)
{
    real difference[SENSORS], variance[SENSORS], wide[SENSORS];
    int i, j;
    innovation(c, z, difference, variance, wide);
    if (judge(c, z, difference, variance, wide)) {
        c->restarts = next(c->restarts);
        for (i = 0; i < STATES; i++)
            for (j = 0; j < STATES; j++) c->cov[i][j] += WIDE_COV[i][j];
    }
    if (condition(c, difference)) return;
    restart(c);
    innovation(c, z, difference, variance, wide);
    if (condition(c, difference)) return;
    restart(c);
    c->restarts -= 1; /* this was one */
}

/* ---- Predict: the model's Gaussian process at an uncertain input ------------------------------------------------- */

/* Mean and covariance of [x[keep], sin x[angle], cos x[angle], ...] for x ~ N(m, S), and the features' mean slope. */
static void model_features(NAME_t *c, const real *m, real S[JOINT][JOINT])
{
    real t[TRIG + 1];
    int a, b, k, l;
    for (a = 0; a < TRIG; a++) t[a] = m[MODEL_ANGLES[a / 2]] + (a % 2 ? HALF_PI : 0);
    for (k = 0; k < KEPT; k++) {
        c->work.mu[k] = m[MODEL_KEEP[k]];
        for (l = 0; l < KEPT; l++) c->work.S[k][l] = S[MODEL_KEEP[k]][MODEL_KEEP[l]];
    }
    for (a = 0; a < TRIG; a++) {
        int row = MODEL_ANGLES[a / 2];
        real v = S[row][row], damping = EXP(-(v > 0 ? v : 0) / 2);
        c->work.mu[KEPT + a] = damping * SIN(t[a]);
        c->work.slope[a] = damping * COS(t[a]);
        for (k = 0; k < KEPT; k++)
            c->work.S[k][KEPT + a] = c->work.S[KEPT + a][k] = S[MODEL_KEEP[k]][row] * c->work.slope[a];
        for (b = 0; b <= a; b++) {
            int column = MODEL_ANGLES[b / 2];
            real s = S[row][column], spread = (v + S[column][column]) / 2;
            real above = s > 0 ? s : 0, below = s < 0 ? s : 0;
            real excess = -EXPM1(-above) * EXP(above - spread) + EXPM1(below) * EXP(-spread);
            real deficit = EXPM1(-above) * EXP(-spread) - EXPM1(below) * EXP(-below - spread);
            real sines = (excess * COS(t[a] - t[b]) - deficit * COS(t[a] + t[b])) / 2;
            c->work.S[KEPT + a][KEPT + b] = c->work.S[KEPT + b][KEPT + a] = sines;
        }
    }
}

/* With M = I + B^1/2 S B^1/2 = L L' for a diagonal B: L into `M`. Returns -1/2 log |M|; `fine` is 0 if there is no L. */
static real whiten(NAME_t *c, const real *B, int *fine)
{
    real log_scale = 0;
    int k, l;
    for (k = 0; k < INPUTS; k++)
        for (l = 0; l < INPUTS; l++) c->work.M[k][l] = (k == l) + SQRT(B[k]) * c->work.S[k][l] * SQRT(B[l]);
    *fine = *fine && factor(&c->work.M[0][0], INPUTS);
    if (*fine)
        for (k = 0; k < INPUTS; k++) log_scale -= LOG(c->work.M[k][k]);
    return log_scale;
}

/* T = (S^-1 + B)^-1, without an inverse of S, for the B that was whitened last. */
static void shrink(NAME_t *c, const real *B, real *T)
{
    int k, l, p;
    for (k = 0; k < INPUTS; k++)
        for (l = 0; l < INPUTS; l++) c->work.A[k][l] = SQRT(B[k]) * c->work.S[k][l];
    solve_lower(&c->work.M[0][0], INPUTS, &c->work.A[0][0], INPUTS);
    for (k = 0; k < INPUTS; k++)
        for (l = 0; l < INPUTS; l++) {
            real sum = c->work.S[k][l];
            for (p = 0; p < INPUTS; p++) sum -= c->work.A[p][k] * c->work.A[p][l];
            T[k * INPUTS + l] = sum;
        }
}

/* By how much T of one output is more than T of both: own B T, with B of the other output. */
static void surplus(const NAME_t *c, int one, int other, real *more)
{
    int k, l, p;
    for (k = 0; k < INPUTS; k++)
        for (l = 0; l < INPUTS; l++) {
            real sum = 0;
            for (p = 0; p < INPUTS; p++)
                sum += c->work.own[one][k][p] * INVERSE_SQUARES[other][p] * c->work.T[p][l];
            more[k * INPUTS + l] = sum;
        }
}

/* The mean of output `o`, how it changes with the input, and what the linear mean adds to its variance. */
static int output_mean(NAME_t *c, int o)
{
    real log_scale, sum[INPUTS], kernels = 0;
    int p, k, l, fine = 1;
    log_scale = whiten(c, INVERSE_SQUARES[o], &fine);
    if (!fine) return 0;
    c->work.log_scale[o] = log_scale;
    shrink(c, INVERSE_SQUARES[o], &c->work.own[o][0][0]);
    for (k = 0; k < INPUTS; k++)
        for (l = 0; l < INPUTS; l++) c->work.A[k][l] = k == l ? SQRT(INVERSE_SQUARES[o][k]) : 0;
    solve_lower(&c->work.M[0][0], INPUTS, &c->work.A[0][0], INPUTS);
    for (k = 0; k < INPUTS; k++) /* A = (L + S)^-1, with the squared length-scales L */
        for (l = 0; l < INPUTS; l++) {
            c->work.T[k][l] = 0;
            for (p = 0; p < INPUTS; p++) c->work.T[k][l] += c->work.A[p][k] * c->work.A[p][l];
        }
    for (k = 0; k < INPUTS; k++) sum[k] = 0;
    for (p = 0; p < POINTS; p++) {
        real Ax[INPUTS], distance = 0, q, weighted;
        for (k = 0; k < INPUTS; k++) {
            Ax[k] = 0;
            for (l = 0; l < INPUTS; l++) Ax[k] += c->work.T[k][l] * c->work.x[p][l];
            distance += Ax[k] * c->work.x[p][k];
        }
        q = c->work.q[o][p] = EXP(log_scale - distance / 2);
        weighted = WEIGHTS[o][p] * q;
        kernels += weighted;
        for (k = 0; k < INPUTS; k++) sum[k] += weighted * c->work.x[p][k];
#if UNCERTAIN_MEAN
        {
            real linear = CROSS_COV[o][p][0];
            for (k = 0; k < INPUTS; k++) {
                real shifted = c->work.mu[k];
                for (l = 0; l < INPUTS; l++) shifted += Ax[l] * c->work.S[l][k];
                linear += CROSS_COV[o][p][1 + k] * shifted;
            }
            c->work.variance[o] += q * linear;
        }
#endif
    }
    c->work.kernels[o] = kernels;
    c->work.y[o] = kernels + OFFSET[o];
    for (k = 0; k < INPUTS; k++) {
        c->work.y[o] += SLOPE[o][k] * c->work.mu[k];
        c->work.gain[k][o] = 0;
        for (l = 0; l < INPUTS; l++) c->work.gain[k][o] += c->work.T[k][l] * sum[l];
    }
#if UNCERTAIN_MEAN
    for (k = -1; k < INPUTS; k++) /* 1 and the features: their second moments */
        for (l = -1; l < INPUTS; l++) {
            real moment = (k < 0 ? 1 : c->work.mu[k]) * (l < 0 ? 1 : c->work.mu[l]);
            if (k >= 0 && l >= 0) moment += c->work.S[k][l];
            c->work.variance[o] += LINEAR_COV[o][1 + k][1 + l] * moment;
        }
#endif
    return 1;
}

/* The leading half of the digits. */
static real leading(real x)
{
    real shifted = x * SPLIT;
    return shifted - (shifted - x);
}

/* sum + low += a b, with nearly twice the digits. */
static void add_product(real *sum, real *low, real a, real b)
{
    real a1 = leading(a), b1 = leading(b), exact = a1 * b1, total = *sum + exact, added = total - *sum;
    *low += (*sum - (total - added)) + (exact - added) + (a - a1) * b + a1 * (b - b1);
    *sum = total;
}

/* q' P q: the entries of the precision P are large, and cancel. */
static real explained(const real *precision, const real *q)
{
    real sum = 0, low = 0;
    int p, k;
    for (p = 0; p < POINTS; p++) {
        real row = 0, low_row = 0;
        for (k = 0; k <= p; k++) add_product(&row, &low_row, *precision++, q[k]);
        add_product(&sum, &low, row, q[p]);
        low += low_row * q[p];
    }
    return sum + low;
}

/* One entry of the outputs' covariance, as far as the kernels go; and the uncertainty of the function itself.
   The covariance of two kernels is q q' (exp d - 1), and d is small where S is. As the expectation of their product
   minus q q' it would lose the digits that both have in common, times large weights. */
static int output_cov(NAME_t *c, int o, int r)
{
    real B[INPUTS], rest, sum = 0, function = 0;
    int p, q, k, l, fine = 1;
    for (k = 0; k < INPUTS; k++) B[k] = INVERSE_SQUARES[o][k] + INVERSE_SQUARES[r][k];
    rest = whiten(c, B, &fine);
    if (!fine) return 0;
    rest = (rest - c->work.log_scale[o] - c->work.log_scale[r]) / 2;
    shrink(c, B, &c->work.T[0][0]);
    surplus(c, o, r, &c->work.A[0][0]);
    surplus(c, r, o, &c->work.M[0][0]);
    for (p = 0; p < POINTS; p++) {
        real left = rest, right = rest;
        for (k = 0; k < INPUTS; k++) {
            real of_left = 0, less_left = 0, less_right = 0;
            real bo = c->work.x[p][k] * INVERSE_SQUARES[o][k], br = c->work.x[p][k] * INVERSE_SQUARES[r][k];
            for (l = 0; l < INPUTS; l++) {
                real other = c->work.x[p][l] * INVERSE_SQUARES[o][l];
                of_left += c->work.T[k][l] * other;
                less_left += c->work.A[k][l] * other;
                less_right += c->work.M[k][l] * c->work.x[p][l] * INVERSE_SQUARES[r][l];
            }
            left -= bo * less_left / 2;
            right -= br * less_right / 2;
            c->work.left[p][k] = of_left;
            c->work.right[p][k] = br;
        }
        c->work.log_left[p] = left;
        c->work.log_right[p] = right;
    }
    for (p = 0; p < POINTS; p++) {
        real row = 0, of_function = 0;
        const real *precision = &PRECISION[o][p * (p + 1) / 2];
        int last = o == r ? p + 1 : POINTS; /* symmetric for one output: half of it is enough */
        for (q = 0; q < last; q++) {
            real d = c->work.log_left[p] + c->work.log_right[q];
            for (k = 0; k < INPUTS; k++) d += c->work.left[p][k] * c->work.right[q][k];
            d = c->work.q[r][q] * EXPM1(d < LARGEST_EXPONENT ? d : LARGEST_EXPONENT);
            row += (o == r && q < p ? 2 : 1) * WEIGHTS[r][q] * d;
            if (o == r) of_function += precision[q] * d;
        }
        sum += WEIGHTS[o][p] * c->work.q[o][p] * row;
        function += c->work.q[o][p] * of_function;
    }
    if (o == r) {
        function += explained(PRECISION[o], c->work.q[o]);
        c->work.variance[o] -= SIGNAL_VARIANCE[o] * SIGNAL_VARIANCE[o] * function;
    }
    c->work.y_cov[o][r] = sum;
    return 1;
}

/* The Gaussian process at N(mu, S): its mean y, its covariance y_cov, and its gain, Cov[input, y] = S gain. */
static int through_gp(NAME_t *c)
{
    int p, o, r, k, l;
    for (p = 0; p < POINTS; p++)
        for (k = 0; k < INPUTS; k++) c->work.x[p][k] = POINT[p][k] - c->work.mu[k];
    for (o = 0; o < OUTPUTS; o++) {
        c->work.variance[o] = SIGNAL_VARIANCE[o];
        if (!output_mean(c, o)) return 0;
    }
    for (o = 0; o < OUTPUTS; o++)
        for (r = o; r < OUTPUTS; r++) {
            if (!output_cov(c, o, r)) return 0;
            for (k = 0; k < INPUTS; k++)
                for (l = 0; l < INPUTS; l++) {
                    real s = c->work.S[k][l];
                    c->work.y_cov[o][r] += c->work.gain[k][o] * s * SLOPE[r][l] + SLOPE[o][k] * s * c->work.gain[l][r] +
                                           SLOPE[o][k] * s * SLOPE[r][l];
                }
            if (o == r && c->work.variance[o] > 0) /* below zero by rounding only */
                c->work.y_cov[o][o] += c->work.variance[o];
            c->work.y_cov[r][o] = c->work.y_cov[o][r];
        }
    for (o = 0; o < OUTPUTS; o++)
        for (k = 0; k < INPUTS; k++) c->work.gain[k][o] += SLOPE[o][k];
    return 1;
}

/* The next belief: x' = L x + M u + B y + H (E - G') D + k + w. 0 if a number overflows. */
static int predict(NAME_t *c, const real *u)
{
    real a[JOINT], S[JOINT][JOINT], NS[STATES][JOINT], G[JOINT][OUTPUTS], NSG[STATES][OUTPUTS];
    real N[STATES][JOINT], B[STATES][OUTPUTS], turned[STATES];
    real mean[STATES], cov[STATES][STATES];
    int i, j, k, o, r;
    for (i = 0; i < JOINT; i++) {
        a[i] = i < STATES ? c->mean[i] : u[i - STATES];
        for (j = 0; j < JOINT; j++) S[i][j] = i < STATES && j < STATES ? c->cov[i][j] : 0;
    }
    model_features(c, a, S);
    if (!through_gp(c)) return 0;
    for (i = 0; i < JOINT; i++) /* how [x, u] and the outputs go together */
        for (o = 0; o < OUTPUTS; o++) {
            G[i][o] = 0;
            for (k = 0; k < KEPT; k++)
                if (MODEL_KEEP[k] == i) G[i][o] += c->work.gain[k][o];
            for (k = 0; k < TRIG; k++)
                if (MODEL_ANGLES[k / 2] == i) G[i][o] += c->work.slope[k] * c->work.gain[KEPT + k][o];
        }
    for (i = 0; i < STATES; i++) {
        mean[i] = known_row(c, u, i);
        for (k = 0; k < STATES; k++) {
            turned[k] = 0;
            for (o = 0; o < OUTPUTS; o++) turned[k] += CORRECTION[i][o] * (RATE_ROWS[o][k] - G[k][o]);
        }
        for (j = 0; j < JOINT; j++) {
            real more = 0;
            for (k = 0; k < STATES; k++) more += turned[k] * MOVES[k][j];
            N[i][j] = KNOWN_ROWS[i][j] + more;
            mean[i] += more * a[j];
        }
        for (o = 0; o < OUTPUTS; o++) {
            B[i][o] = OUTPUT_MATRIX[i][o];
            for (k = 0; k < STATES; k++) B[i][o] += turned[k] * OUTPUT_MATRIX[k][o];
            mean[i] += B[i][o] * c->work.y[o];
        }
        for (j = 0; j < JOINT; j++) {
            NS[i][j] = 0;
            for (k = 0; k < STATES; k++) NS[i][j] += N[i][k] * S[k][j];
        }
        for (o = 0; o < OUTPUTS; o++) {
            NSG[i][o] = 0;
            for (j = 0; j < JOINT; j++) NSG[i][o] += NS[i][j] * G[j][o];
        }
    }
    for (i = 0; i < STATES; i++)
        for (j = 0; j < STATES; j++) {
            real sum = i == j ? PROCESS_NOISE[i] : 0;
            for (k = 0; k < STATES; k++) sum += NS[i][k] * N[j][k];
            for (o = 0; o < OUTPUTS; o++) {
                sum += NSG[i][o] * B[j][o] + B[i][o] * NSG[j][o];
                for (r = 0; r < OUTPUTS; r++) sum += B[i][o] * c->work.y_cov[o][r] * B[j][r];
            }
            cov[i][j] = sum;
        }
    return believe(c, mean, cov);
}

void NAME_act(NAME_t *c, const NAME_real z[SENSORS], NAME_real u[ACTIONS])
{
    real known[STATES];
    int i;
    update(c, z);
    policy(c, u);
    if (!predict(c, u)) { /* what is known of the next state is known all the same */
        for (i = 0; i < STATES; i++) known[i] = known_row(c, u, i);
        for (i = 0; i < STATES; i++) c->mean[i] = known[i];
        restart(c);
    }
    c->steps = next(c->steps);
}
