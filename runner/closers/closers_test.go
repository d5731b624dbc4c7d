package closers

import (
	"errors"
	"slices"
	"testing"
)

func TestStack(t *testing.T) {
	first, second, cause := errors.New("first"), errors.New("second"), errors.New("cause")
	for _, test := range []struct {
		name string
		err  error
		want []string
	}{
		{"error", cause, []string{"second", "func", "first"}},
		{"success", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s Stack
			var got []string
			open := func() (err error) {
				defer s.CloseOnError(&err)
				s.Push(func() error { got = append(got, "first"); return first })
				s.PushFunc(func() { got = append(got, "func") })
				s.Push(func() error { got = append(got, "second"); return second })
				return test.err
			}
			err := open()
			if !slices.Equal(got, test.want) {
				t.Errorf("closed %q, want %q", got, test.want)
			}
			for _, e := range []error{cause, second, first} {
				if errors.Is(err, e) != (test.err != nil) {
					t.Errorf("the error is %v, for %v", err, e)
				}
			}
			if err := s.Close(); errors.Is(err, first) != (test.err == nil) {
				t.Errorf("Close after that returned %v", err)
			}
			if err := s.Close(); err != nil || len(got) != 3 {
				t.Errorf("a further Close returned %v and called functions: %q", err, got)
			}
		})
	}
}
