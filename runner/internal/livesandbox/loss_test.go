package livesandbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

func TestLossNamesTheLimit(t *testing.T) {
	for _, tt := range []struct {
		limit      limits.ExceededError
		text, tell string
	}{
		{limits.ExceededError{Kind: limits.KindMemory, Limit: 2 << 30}, "the container reached its limit: memory, 2048 MiB", "The sandbox reached its limit (memory, 2048 MiB) and"},
		{
			limits.ExceededError{Kind: limits.KindMemory, Limit: 512 << 20, Job: true},
			"the container reached the limit of the job that it runs in: memory, 512 MiB", "The sandbox reached the limit of the job that it runs in (memory, 512 MiB) and",
		},
		{
			limits.ExceededError{Kind: limits.KindPIDs, Limit: 200, Job: true},
			"the container reached the limit of the job that it runs in: 200 processes and threads", "in (200 processes and threads) and",
		},
	} {
		why := lossOf(fmt.Errorf("%w: %w", sandbox.ErrLost, &tt.limit))
		if why.text != tt.text || !strings.Contains(why.tell, tt.tell) || !why.again {
			t.Errorf("%+v", why)
		}
	}
}
