//go:build race

package fetch

// raceEnabled says that everything is many times slower.
const raceEnabled = true
