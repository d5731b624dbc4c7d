package batch

import (
	"testing"
	"time"
)

// SetHealthTime changes the bound of health checks for a test.
func SetHealthTime(t *testing.T, d time.Duration) {
	was := healthTime
	healthTime = d
	t.Cleanup(func() { healthTime = was })
}
