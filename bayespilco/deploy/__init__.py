"""What leaves the house. Everything here but `bridge` needs NumPy only, so it runs beside the plant.

files         writing a file completely or not at all
logs          episodes as tables
controller    a learned controller in one file
c             the same controller as C, for machines without Python
export        saving either
link          a plant behind a wire: UDP or a serial line
rig           a real plant: run in time, recorded, stopped safely
bridge        from what was learned to the above (this imports JAX)
"""
