package speaker

import "testing"

func TestStopKind(t *testing.T) {
	for _, row := range []struct {
		in   stopInputs
		want string
	}{
		{stopInputs{}, ""},
		{stopInputs{isShutdown: true}, "the node shuts down"},
		{stopInputs{isDraining: true}, "traffic is to leave the node"},
		{stopInputs{isDraining: true, isShutdown: true}, "traffic is to leave the node"},
		{stopInputs{isDeleted: true}, "the node has no neighbours any more"},
		{stopInputs{isDeleted: true, isDraining: true, isShutdown: true}, "the node has no neighbours any more"},
	} {
		if got := reasonToDropRoutes(row.in); got != row.want {
			t.Errorf("%+v: %q, want %q", row.in, got, row.want)
		}
	}
}
