package tools

import (
	"errors"
	"testing"
)

func TestErrorGivesItsCause(t *testing.T) {
	cause := errors.New("cause")
	if err := (&Error{Class: ErrorExecution, Err: cause}); !errors.Is(err, cause) || err.Error() != "execution_error" {
		t.Error(err)
	}
	if err := (&Error{Class: ErrorExecution, Message: "said"}); err.Error() != "said" {
		t.Error(err)
	}
}
