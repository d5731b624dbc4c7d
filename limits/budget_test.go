package limits_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
)

// TestLowerTo checks that each limit can be lowered or added, and none raised.
func TestLowerTo(t *testing.T) {
	full := func(n int64) limits.Budget {
		return limits.Budget{Rounds: new(n), ToolCalls: new(n), Tokens: new(n), CostMicroUSD: new(n), WallTime: new(time.Duration(n) * time.Second)}
	}
	for _, asked := range []int64{1, 5} {
		got, err := full(5).LowerTo(full(asked))
		if diff := cmp.Diff(full(asked), got); diff != "" || err != nil {
			t.Errorf("5 to %d: %v\n%s", asked, err, diff)
		}
	}
	if got, err := (limits.Budget{}).LowerTo(full(5)); err != nil || !cmp.Equal(got, full(5)) {
		t.Errorf("limits that were not there: %+v, %v", got, err)
	}
	if got, err := full(5).LowerTo(limits.Budget{}); err != nil || !cmp.Equal(got, full(5)) {
		t.Errorf("no limits: %+v, %v", got, err)
	}
	for kind, asked := range map[limits.Kind]limits.Budget{
		limits.KindRounds: {Rounds: new(int64(6))}, limits.KindToolCalls: {ToolCalls: new(int64(6))}, limits.KindTokens: {Tokens: new(int64(6))},
		limits.KindCost: {CostMicroUSD: new(int64(6))}, limits.KindWallTime: {WallTime: new(6 * time.Second)},
	} {
		_, err := full(5).LowerTo(asked)
		if raised, ok := errors.AsType[*limits.RaisedError](err); !ok || raised.Kind != kind || raised.Asked <= raised.Limit {
			t.Errorf("%s raised: %v", kind, err)
		}
	}
	if _, err := full(5).LowerTo(limits.Budget{Tokens: new(int64(0))}); err == nil {
		t.Error("a limit of zero is taken")
	}
}
