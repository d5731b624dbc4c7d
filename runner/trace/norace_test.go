//go:build !race

package trace

// raced says that the race detector is on.
const raced = false
