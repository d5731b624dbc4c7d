package batch

import (
	"sync/atomic"
	"testing"
	"time"
)

// Machines counts the machines that tests of trials asked for and got. MissingMachine
// says why one is missing.
var (
	MachinesAsked, MachinesMade atomic.Int64
	MissingMachine              atomic.Value
)

// SetHealthTime changes the bound of health checks for a test.
func SetHealthTime(t *testing.T, d time.Duration) {
	was := healthTime
	healthTime = d
	t.Cleanup(func() { healthTime = was })
}
