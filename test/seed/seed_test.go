package seed

import "testing"

func TestOf(t *testing.T) {
	t.Setenv(Variable, "")
	if got := Of(t, 7); got != 7 {
		t.Errorf("without %s: %d", Variable, got)
	}
	t.Setenv(Variable, "-12")
	if got := Of(t, 7); got != -12 {
		t.Errorf("with %s: %d", Variable, got)
	}
}
