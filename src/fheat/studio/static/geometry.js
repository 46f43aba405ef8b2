// Voxels and places: affines, and the edges of labels.

/** Return the voxel of the file at a position: the affine, solved by Cramer's rule. */
export function voxelAt(affine, mm) {
  const columns = columnsOf(affine);
  const shift = mm.map((value, row) => value - affine[row][3]);
  const whole = determinant(columns);
  return [0, 1, 2].map((axis) => {
    const replaced = columns.map((column, index) => (index === axis ? shift : column));
    return Math.round(determinant(replaced) / whole);
  });
}

/** Return the determinant of three columns: for those of an affine, the volume of a voxel with its sign. */
export function determinant([a, b, c]) {
  return (
    a[0] * (b[1] * c[2] - b[2] * c[1]) - b[0] * (a[1] * c[2] - a[2] * c[1]) + c[0] * (a[1] * b[2] - a[2] * b[1])
  );
}

/** Return the three columns of an affine that say how far a voxel reaches along each axis of the file. */
export function columnsOf(affine) {
  return [0, 1, 2].map((column) => [0, 1, 2].map((row) => affine[row][column]));
}

/** Return the middle of all voxels that are not 0, in voxels, or null where all are. */
export function middleOf(voxels, [nx, ny, nz]) {
  const sum = [0, 0, 0];
  let count = 0;
  for (let z = 0, index = 0; z < nz; z++) {
    for (let y = 0; y < ny; y++) {
      for (let x = 0; x < nx; x++, index++) {
        if (voxels[index] === 0) continue;
        count += 1;
        sum[0] += x;
        sum[1] += y;
        sum[2] += z;
      }
    }
  }
  return count === 0 ? null : sum.map((value) => value / count);
}

/** Return labels without their inside: a voxel stays if one of its six neighbours has another label or does not exist. */
export function edgesOf(voxels, [nx, ny, nz]) {
  const edges = new voxels.constructor(voxels.length);
  const slice = nx * ny;
  for (let z = 0, index = 0; z < nz; z++) {
    for (let y = 0; y < ny; y++) {
      for (let x = 0; x < nx; x++, index++) {
        const label = voxels[index];
        if (label === 0) continue;
        const inside =
          x > 0 && x < nx - 1 && y > 0 && y < ny - 1 && z > 0 && z < nz - 1 &&
          voxels[index - 1] === label && voxels[index + 1] === label &&
          voxels[index - nx] === label && voxels[index + nx] === label &&
          voxels[index - slice] === label && voxels[index + slice] === label;
        if (!inside) edges[index] = label;
      }
    }
  }
  return edges;
}
