package netns

import (
	"fmt"
	"strings"
)

// sysctlPath is the file of a sysctl that belongs to a network namespace.
// /proc/sys/net shows those of the thread that looks.
func sysctlPath(key string) (string, error) {
	if !strings.HasPrefix(key, "net.") {
		return "", fmt.Errorf("sysctl %s is not one of a network namespace", key)
	}
	return "/proc/sys/" + strings.ReplaceAll(key, ".", "/"), nil
}
