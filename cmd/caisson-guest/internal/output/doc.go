// Package output reads what a command writes: the first bytes of each stream
// go to the host as they come, as fast as it consumes them; the rest is read
// at full speed, counted, hashed and dropped, but for a tail that is kept.
package output
