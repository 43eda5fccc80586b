// Small dense linear algebra. A matrix is an array of rows, each a Float64Array; a vector is a Float64Array.
"use strict";

const LARGEST_NUMBER = 1e100;

class NotFinite extends Error {}

/** Which numbers are there. NaN, infinity and null are missing. */
const isSeen = (value) => value !== null && Math.abs(value) <= LARGEST_NUMBER;

function requireFinite(...arrays) {
  for (const array of arrays)
    for (const row of array)
      for (const value of typeof row === "number" ? [row] : row) if (!isSeen(value)) throw new NotFinite();
}

const vector = (values) => Float64Array.from(values);
const zeros = (rows, columns) => Array.from({ length: rows }, () => new Float64Array(columns));
const diagonal = (values) => {
  const D = zeros(values.length, values.length);
  for (let i = 0; i < values.length; i++) D[i][i] = values[i];
  return D;
};
const identity = (size) => diagonal(new Float64Array(size).fill(1));
const copied = (A) => A.map((row) => Float64Array.from(row));

/** `A B`; `columns` is needed when B has no rows. */
function multiply(A, B, columns = B.length ? B[0].length : 0) {
  const C = zeros(A.length, columns);
  for (let i = 0; i < A.length; i++)
    for (let k = 0; k < B.length; k++) {
      const a = A[i][k];
      if (a !== 0) for (let j = 0; j < columns; j++) C[i][j] += a * B[k][j];
    }
  return C;
}

function transpose(A, columns = A.length ? A[0].length : 0) {
  const T = zeros(columns, A.length);
  for (let i = 0; i < A.length; i++) for (let j = 0; j < columns; j++) T[j][i] = A[i][j];
  return T;
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** `A x` */
const apply = (A, x) => vector(A.map((row) => dot(row, x)));

/** The entrywise sum of matrices of one size. */
function sum(...matrices) {
  const total = copied(matrices[0]);
  for (const M of matrices.slice(1))
    for (let i = 0; i < total.length; i++) for (let j = 0; j < total[i].length; j++) total[i][j] += M[i][j];
  return total;
}

function symmetrised(A) {
  return A.map((row, i) => row.map((value, j) => (value + A[j][i]) / 2));
}

/** The lower factor `L` of `A = L L'`. */
function cholesky(A) {
  const n = A.length;
  const L = zeros(n, n);
  for (let i = 0; i < n; i++)
    for (let j = 0; j <= i; j++) {
      let rest = A[i][j];
      for (let k = 0; k < j; k++) rest -= L[i][k] * L[j][k];
      if (i !== j) L[i][j] = rest / L[j][j];
      else if (rest > 0) L[i][i] = Math.sqrt(rest);
      else throw new NotFinite();
    }
  return L;
}

/** `L^-1 B` for a lower `L`. */
function solveLower(L, B) {
  const X = copied(B);
  for (let i = 0; i < L.length; i++)
    for (let j = 0; j < X[i].length; j++) {
      for (let k = 0; k < i; k++) X[i][j] -= L[i][k] * X[k][j];
      X[i][j] /= L[i][i];
    }
  return X;
}

/** Eigenvalues and eigenvectors (columns) of a symmetric matrix, by Jacobi's rotations. */
function eigen(A) {
  const n = A.length;
  const D = symmetrised(A);
  const V = identity(n);
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    let size = 0;
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++) {
        size += D[i][j] ** 2;
        if (i !== j) off += D[i][j] ** 2;
      }
    if (off <= 1e-34 * size) break;
    for (let p = 0; p < n; p++)
      for (let q = p + 1; q < n; q++) {
        if (D[p][q] === 0) continue;
        const theta = (D[q][q] - D[p][p]) / (2 * D[p][q]);
        const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1);
        const s = t * c;
        for (let k = 0; k < n; k++) [D[k][p], D[k][q]] = [c * D[k][p] - s * D[k][q], s * D[k][p] + c * D[k][q]];
        for (let k = 0; k < n; k++) [D[p][k], D[q][k]] = [c * D[p][k] - s * D[q][k], s * D[p][k] + c * D[q][k]];
        for (let k = 0; k < n; k++) [V[k][p], V[k][q]] = [c * V[k][p] - s * V[k][q], s * V[k][p] + c * V[k][q]];
      }
  }
  return { values: vector(D.map((row, i) => row[i])), vectors: V };
}

/** A `C` with `C C' = P`, for a symmetric P without negative eigenvalues but for rounding. */
function root(P) {
  requireFinite(P);
  const { values, vectors } = eigen(P);
  return vectors.map((row) => row.map((value, j) => value * Math.sqrt(Math.max(values[j], 0))));
}

/** `(P^-1 + B)^-1` and `-1/2 log |I + P B|` without either inverse, given a root of P. */
function shrink(C, B) {
  requireFinite(B);
  const Ct = transpose(C);
  const inner = sum(identity(C.length), multiply(Ct, multiply(B, C)));
  requireFinite(inner);
  const L = cholesky(inner);
  const half = solveLower(L, Ct);
  let logDet = 0;
  for (let i = 0; i < L.length; i++) logDet -= Math.log(L[i][i]);
  return { inverse: multiply(transpose(half), half), logDet };
}
