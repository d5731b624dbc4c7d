// Package output reads a command's output. The first bytes of each stream go to
// the host as they come, as fast as it consumes them. The rest is read at full
// speed, counted, hashed and dropped, except for a tail that is kept.
package output
