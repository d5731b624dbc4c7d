//go:build !linux

package approval

import "time"

// sinceBoot is no clock here: Go's own monotonic clock alone counts, which on
// some systems stands still while the machine sleeps.
func sinceBoot() time.Duration { return 0 }
