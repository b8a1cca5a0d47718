package tcpmd5_test

import (
	"strings"
	"testing"

	"github.com/purelb/purelb-operator/internal/tcpmd5"
)

// TestPasswordIn cuts off the end of the last line, and says in words what is wrong with a password.
func TestPasswordIn(t *testing.T) {
	longest := strings.Repeat("x", 80)
	for content, want := range map[string][2]string{
		"x": {"x", ""}, "x\ny\n": {"x\ny", ""}, longest + "\r\n": {longest, ""}, "": {"", "is empty"}, "\n": {"", "is empty"},
		longest + "x": {longest + "x", "has 81 bytes: TCP MD5 takes at most 80"},
	} {
		if password, problem := tcpmd5.ParsePassword([]byte(content)); password != want[0] || problem != want[1] {
			t.Errorf("%q: %q %s, not %q %s", content, password, problem, want[0], want[1])
		}
	}
}
