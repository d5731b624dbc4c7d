//go:build !race

package trace

// raceEnabled reports whether the race detector is on.
const raceEnabled = false
