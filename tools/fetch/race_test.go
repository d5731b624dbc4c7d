//go:build race

package fetch

// raceEnabled reports whether the race detector slows the tests down.
const raceEnabled = true
